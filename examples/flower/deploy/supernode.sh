#!/bin/sh
# Start a SuperNode: it believes only the server that ca.pem vouches for, and shows its key.
#
#   supernode.sh CA_PEM PRIVATE_KEY SUPERLINK NODE_CONFIG [PORT]
#
# SUPERLINK is the server's host:port; NODE_CONFIG such as "partition-id=0 num-partitions=3". PORT is
# local to this machine, and differs between nodes on one machine.
set -eu
authority=$1
key=$2
superlink=$3
config=$4
port=${5:-9094}

export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1

exec flower-supernode --superlink "$superlink" --root-certificates "$authority" \
    --auth-supernode-private-key "$key" \
    --port "$port" --node-config "$config"
