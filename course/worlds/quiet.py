"""Warnings that tell the reader nothing."""

import warnings


def ignore_new_names() -> None:
    """torch 2.13 gave collectives new names and warns at each use of the old ones.

    Both do the same. The old names are the ones that all supported versions have.
    """
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning
    )
