"""The web page at `/`: its routes, and the static files that it is made of."""
