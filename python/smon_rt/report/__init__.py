"""How a report looks: terminal, JSON, one offline HTML page, a fragment for notebooks."""
