"""A simulation of a fleet of replicas behind a balancer, fed with service times measured on one server."""
