"""Fashion-MNIST: 70,000 pictures of clothes in MNIST's form (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

from fedimmune.tasks.mnist import Mnist

__all__ = ["FashionMnist"]


class FashionMnist(Mnist):
    """Pictures of clothes, with the paper's LeNet."""

    name = "fashion-mnist"
    summary = "70,000 pictures of clothes at 32×32, LeNet"
    source = "https://github.com/zalandoresearch/fashion-mnist (Xiao, Rasul and Vollgraf 2017)"

    folder = "FashionMNIST/raw"
    address = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    md5s = {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }
    mean = 0.2860
    std = 0.3530
