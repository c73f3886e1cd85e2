"""The HTTP service: tenants, routes and statistics around one store."""
