"""HTTP/1.1 and TLS, as clients and proxies speak them."""
