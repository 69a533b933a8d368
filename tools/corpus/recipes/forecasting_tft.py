"""A temporal fusion transformer of pytorch-forecasting, created for a data frame."""

import pandas
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from torch import nn

LIBRARIES = ("pytorch-forecasting",)
OPERATORS = "torchvision"


class Forecast(nn.Module):
    """Only the forecast of the network's outputs."""

    def __init__(self, net: TemporalFusionTransformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch):
        """Return the quantiles."""
        return self.net(batch)["prediction"]


def build():
    """Return the model and its inputs."""
    series = pandas.DataFrame(
        {"time": [*range(20)] * 2, "group": ["a"] * 20 + ["b"] * 20, "value": [0.5, 1.5] * 20}
    )
    data = TimeSeriesDataSet(
        series,
        time_idx="time",
        target="value",
        group_ids=["group"],
        static_categoricals=["group"],
        time_varying_unknown_reals=["value"],
        max_encoder_length=6,
        max_prediction_length=2,
    )
    net = TemporalFusionTransformer.from_dataset(data, hidden_size=8, attention_head_size=2)
    batch, _ = next(iter(data.to_dataloader(train=False, batch_size=2, num_workers=0)))
    return Forecast(net), (batch,)
