"""The report on a job: its contents, and its formats HTML, Markdown, JSON and CSV."""
