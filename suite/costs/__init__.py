"""The cost model: seconds a step of any method on any link, predicted from probes and scored against sessions."""
