"""A job as a document to keep and to show: its contents, and its HTML, Markdown, JSON and CSV."""
