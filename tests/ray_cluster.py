"""A Ray cluster of one node that all tests of a process share."""

from __future__ import annotations

import os


def started() -> str:
    """Return the address of the cluster: four CPUs, and a GPU that does not exist.

    Ray stops the cluster when the process ends.
    """
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    attempts = 3
    while not ray.is_initialized():
        attempts -= 1
        try:
            ray.init(
                "local",
                num_cpus=4,
                num_gpus=1,
                include_dashboard=False,
                object_store_memory=200_000_000,
                logging_level="error",
            )
        except Exception:  # its processes have 15 seconds, which a busy machine may exceed
            ray.shutdown()
            if not attempts:
                raise
    address: str = ray.get_runtime_context().gcs_address
    return address
