"""The recorder of calls that tests of running use, too."""

from tests.unit.running.conftest import calls

__all__ = ["calls"]
