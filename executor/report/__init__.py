"""Makes the report on a job: reads its contents, and writes them as HTML, Markdown, JSON or CSV."""
