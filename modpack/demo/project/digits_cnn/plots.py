"""How a training run went. Needs labplot, which only the machine that trains has."""

import labplot


class TrainingSheet(labplot.Sheet):
    """The two curves that everybody asks for."""

    def __init__(self, losses: list[float], accuracies: list[float]) -> None:
        super().__init__()
        self.curve("loss", losses)
        self.curve("accuracy", accuracies)
