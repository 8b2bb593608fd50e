"""Names of files that a chief leaves in a model directory for debugging."""

from __future__ import annotations

from monolith.files import join

__all__ = ["get_debugging_info_file_name", "get_meta_graph_file_name"]


def get_debugging_info_file_name(model_dir: str) -> str:
    """Returns the file in which the chief lists the processes of a job; see `monolith.train.debugging_info`.

    >>> get_debugging_info_file_name("/models/ranker")
    '/models/ranker/debugging_info.pb'
    """
    return join(model_dir, "debugging_info.pb")


def get_meta_graph_file_name(model_dir: str) -> str:
    """Returns the file in which ByteDance Monolith describes the model; here `<prefix>.meta` of each checkpoint does.

    >>> get_meta_graph_file_name("/models/ranker")
    '/models/ranker/meta_graph_for_debugging.pb'
    """
    return join(model_dir, "meta_graph_for_debugging.pb")
