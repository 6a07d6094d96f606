"""HTML pages of tables: how things look (`numbers`, `tables`, `figures`, `pages`), a chapter of a page a module, and the site."""
