"""All pages of a results folder together: the first page, the leaderboard, a page a run."""
