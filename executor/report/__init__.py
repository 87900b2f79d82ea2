"""A job as a document to keep and to show: what it holds, and its HTML, Markdown, JSON and CSV."""
