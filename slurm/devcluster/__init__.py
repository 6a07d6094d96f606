"""A real Slurm cluster in one machine: ``munged``, ``slurmctld`` and a ``slurmd`` for every node.

For trying a sweep without a cluster, and for testing against Slurm itself instead of a mock::

    with cluster(nodes=2) as slurm:
        subprocess.run(["sbatch", ...], env=slurm.environ())

or, from a shell, ``python -m slurm.devcluster up --nodes 2``, ``status``, ``down``. It needs
Debian's packages slurm-wlm and munge, uses no system-wide configuration, and leaves nothing behind.
"""

from slurm.devcluster.config import Node
from slurm.devcluster.lifecycle import Cluster, DevClusterError, cluster, down, status, up

__all__ = ["Cluster", "DevClusterError", "Node", "cluster", "down", "status", "up"]
