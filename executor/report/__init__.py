"""The report on a job: the report's contents, and the formats HTML, Markdown, JSON and CSV."""
