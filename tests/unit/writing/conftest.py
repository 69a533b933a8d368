"""The archives of the reader's tests, for those of the writer."""

from tests.unit.archive.conftest import forge, record, write_package

__all__ = ["forge", "record", "write_package"]
