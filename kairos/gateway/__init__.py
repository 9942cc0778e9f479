"""HTTP in: the server, the API of clients, who may call, the operators' port and page."""
