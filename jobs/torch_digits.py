"""A PyTorch module as a job: a small convolutional network for 8x8 digits.

Used by jobs/torch_digits.toml; docs/models.md explains the parts. Needs the extra `torch`.
"""

import torch
from torch import nn

from hpcslaq.train import Option, require_classes
from hpcslaq.train.torch_model import TorchModel


class DigitsNet(TorchModel):
    """Two convolutions with batch normalisation, dropout, and a linear layer."""

    options = {
        **TorchModel.options,
        "batch_size": Option(int, 128, "rows of a mini-batch, over all workers", at_least=1),
        "rate": Option(float, 0.01, "learning rate at first", above=0.0),
        "channels": Option(int, 16, "channels of the first convolution", at_least=1),
        "dropout": Option(float, 0.2, "share of units left out", at_least=0.0, below=1.0),
    }

    def check_data(self, info):
        require_classes(info, "DigitsNet")

    def build(self, info):
        channels, side = self.settings["channels"], round(info.num_features**0.5)
        return nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(self.settings["dropout"]),
            nn.Linear(2 * channels * (side // 2) ** 2, info.num_classes),
        )

    def loss(self, outputs, y):
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    def optimiser(self, parameters):
        return torch.optim.Adam(parameters, lr=self.settings["rate"])

    def before_step(self, optimiser, context):
        for group in optimiser.param_groups:
            group["lr"] = self.settings["rate"] / (1 + 0.2 * context.epoch)
