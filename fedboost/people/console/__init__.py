"""Pages of the console, drawn from facts: HTML, and the document of the interface for programs."""
