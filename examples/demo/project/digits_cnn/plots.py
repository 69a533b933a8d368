"""Plots of a training run. They need labplot, which only the training machine has."""

import labplot


class TrainingSheet(labplot.Sheet):
    """The curves of loss and accuracy."""

    def __init__(self, losses: list[float], accuracies: list[float]) -> None:
        super().__init__()
        self.curve("loss", losses)
        self.curve("accuracy", accuracies)
