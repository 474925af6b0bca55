"""Words from other tools, and the command here that does what they mean."""

from __future__ import annotations

from collections.abc import Collection

from garrison.models.problems import shown, suggestion

_CLUSTER = {
    **dict.fromkeys(
        ("stop", "down", "delete", "destroy", "rm", "remove", "kill", "cancel", "release"),
        "terminate",
    ),
    **dict.fromkeys(("create", "start", "new", "add", "deploy", "buy", "apply"), "up"),
    **dict.fromkeys(("status", "describe", "show", "info", "inspect"), "get"),
    **dict.fromkeys(("ls", "ps"), "list"),
    **dict.fromkeys(("price", "estimate", "plan"), "quote"),
    **dict.fromkeys(("login", "shell", "attach", "connect"), "ssh"),
    **dict.fromkeys(("restart", "repair", "heal", "reboot"), "recover"),
    "log": "logs",
    "follow": "wait",
}
_ELASTIC = {
    **dict.fromkeys(
        ("stop", "down", "destroy", "rm", "remove", "kill", "terminate", "release", "d"), "delete"
    ),
    **dict.fromkeys(("new", "add", "make", "launch", "up", "c"), "create"),
    **dict.fromkeys(("status", "describe", "show", "info", "inspect"), "get"),
    **dict.fromkeys(("ls", "ps"), "list"),
    **dict.fromkeys(("edit", "set", "patch", "change", "modify"), "update"),
}
_NODEPOOL = {
    **_ELASTIC,
    **dict.fromkeys(("scale", "resize", "enable", "disable"), "update"),
    **dict.fromkeys(("nodes", "events"), "get"),
}
_DEPLOYMENT = {
    **_ELASTIC,
    **dict.fromkeys(("replicas", "rollout"), "get"),
    **dict.fromkeys(("resize", "autoscale"), "scale"),
    **dict.fromkeys(("start", "resume", "restart", "unpause"), "enable"),
    **dict.fromkeys(("stop", "pause", "suspend", "down"), "disable"),
    **dict.fromkeys(("deploy", "serve", "run"), "create"),
    "log": "logs",
    "history": "events",
}
_LISTED = dict.fromkeys(("ls", "ps", "get", "show", "search", "find", "describe", "status"), "list")
_ORPHAN = {
    **_LISTED,
    **dict.fromkeys(
        ("delete", "destroy", "rm", "remove", "clean", "cleanup", "prune", "terminate", "kill"),
        "sweep",
    ),
}
_SIMULATED = {
    **dict.fromkeys(("ls", "ps", "list", "get", "status", "machines", "nodes"), "inventory"),
    **dict.fromkeys(("stop", "down", "delete", "destroy", "rm", "terminate"), "kill"),
    **dict.fromkeys(("start", "restart", "up", "boot"), "revive"),
    **dict.fromkeys(("reclaim", "preempt", "interrupt", "take"), "notice"),
    "fault": "faults",
}
_FAULTS = {
    **dict.fromkeys(("create", "new", "set", "inject"), "add"),
    **dict.fromkeys(("rm", "delete", "remove", "reset"), "clear"),
    **dict.fromkeys(("ls", "get", "show"), "list"),
}
_CLUSTER_VERBS = (
    "quote",
    "launch",
    "list",
    "get",
    "wait",
    "connections",
    "ssh",
    "logs",
    "events",
    "recover",
    "recovery",
    "terminate",
)
_ROOT = {
    **{word: f"cluster {verb}" for word, verb in _CLUSTER.items() if word != "apply"},
    **{verb: f"cluster {verb}" for verb in _CLUSTER_VERBS},
    **dict.fromkeys(("instance", "instances", "machine", "machines", "node", "nodes"), "cluster"),
    **dict.fromkeys(("prices", "catalog", "catalogue", "gpus"), "offer list"),
    **dict.fromkeys(("serve", "server", "run"), "up"),
    "orphans": "orphan list",
    "sweep": "orphan sweep",
    "inventory": "simulated inventory",
    "faults": "simulated faults",
    "check": "doctor",
    **dict.fromkeys(("cc", "computeclusters", "compute-cluster"), "computecluster"),
    **dict.fromkeys(("np", "nodepools", "pool", "pools", "nodegroup"), "nodepool"),
    **dict.fromkeys(("dp", "deployments", "service", "services"), "deployment"),
    **{verb: f"deployment {verb}" for verb in ("scale", "enable", "disable")},
    **dict.fromkeys(("deploy", "autoscale"), "deployment create"),
    **dict.fromkeys(("replica", "replicas"), "deployment get"),
    **dict.fromkeys(("update", "edit"), "apply"),
}
FOREIGN: dict[str, dict[str, str]] = {
    "garrison": _ROOT,
    "garrison cluster": _CLUSTER,
    "garrison computecluster": _ELASTIC,
    "garrison nodepool": _NODEPOOL,
    "garrison deployment": _DEPLOYMENT,
    "garrison offer": _LISTED,
    "garrison provider": _LISTED,
    "garrison orphan": _ORPHAN,
    "garrison simulated": _SIMULATED,
    "garrison simulated faults": _FAULTS,
}
"""By the command that the word follows."""


def correction(path: str, word: str, known: Collection[str]) -> str:
    """Return what to type instead of a word that is no command.

    Args:
        path: The command before it, `garrison cluster`.
        word: What was typed.
        known: The commands that exist there.
    """
    meant = FOREIGN.get(path, {}).get(word.lower())
    hint = suggestion(word, known) if meant is None else f"did you mean `{path} {meant}`?"
    return f"`{path}` has no command {shown(word)}; {hint}"
