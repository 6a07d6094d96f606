"""A real Slurm cluster in one machine: ``munged``, ``slurmctld`` and a ``slurmd`` for every node.

For trying a sweep without a cluster, and for testing against Slurm itself instead of a mock::

    with cluster(nodes=2) as slurm:                                  # nodes that share this machine's network
        subprocess.run(["sbatch", ...], env={**os.environ, **slurm.env})
    with cluster(Link.parse(4, "1gbit")) as slurm:  # a node a worker, behind shaped wires
        slurm.kill_node("node-3")

or, from a shell, ``python -m tests.slurm.devcluster up``. It needs Debian's packages slurm-wlm and munge,
uses no system-wide configuration, and leaves nothing behind.
"""

from tests.slurm.devcluster.cluster import SLURMD_TIMEOUT_S, Cluster, attach, cluster, up

__all__ = ["SLURMD_TIMEOUT_S", "Cluster", "attach", "cluster", "up"]
