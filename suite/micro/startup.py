"""How long a newcomer waits before anything happens: imports in a fresh interpreter."""

from __future__ import annotations

__all__ = ["TimeImport"]


class TimeImport:
    """Seconds, a new process each: start of Python, then the import."""

    version = "1"
    timeout = 60
    rounds = 1
    processes = 1
    repeat = (3, 5, 10.0)

    def timeraw_reference_impls(self) -> str:
        return "import reference_impls"

    def timeraw_torch_alone(self) -> str:
        """What the import of torch costs by itself: the control of the line above."""
        return "import torch"

    def timeraw_command_line(self) -> str:
        return "import bandwise.cli"

    def timeraw_help(self) -> str:
        """What `bandwise --help` does: every verb is imported and says its part."""
        return "import bandwise.cli; bandwise.cli.parser().format_help()"

    def timeraw_list_algorithms(self) -> str:
        """The whole registry, without torch."""
        return "import reference_impls; reference_impls.list_algorithms()"
