#!/bin/sh
# Start the SuperLink: encrypted, and only for nodes whose key is registered.
#
#   superlink.sh CERTIFICATES [HOST [PORT [DATABASE]]]
#
# CERTIFICATES holds ca.pem, server.pem and server.key. With a DATABASE, registered keys and finished
# runs outlive a restart; without one they are kept in memory.
set -eu
certificates=$1
host=${2:-0.0.0.0}
port=${3:-8000}
database=${4:-}

# Flower calls nobody, and uses the packages that are installed here.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1

# exec: whoever started this script has the SuperLink's own process number.
exec flower-superlink --host "$host" --port "$port" \
    --ssl-ca-certfile "$certificates/ca.pem" \
    --ssl-certfile "$certificates/server.pem" --ssl-keyfile "$certificates/server.key" \
    --enable-supernode-auth \
    --disable-runtime-dependency-installation \
    ${database:+--database "$database"}
