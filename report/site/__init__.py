"""All pages of a results folder together: the first page, a page a run."""
