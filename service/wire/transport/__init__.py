"""What HTTP does around a call, whatever the protocol: content codings, request ids, CORS, paths. Knows no route."""
