"""Who counts the requests of deployments: routers, a Prometheus server, the replicas themselves."""
