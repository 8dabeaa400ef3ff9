"""The web page at `/`: its routes and static files."""
