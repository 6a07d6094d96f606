"""All pages of a results folder together: the first page, methods."""
