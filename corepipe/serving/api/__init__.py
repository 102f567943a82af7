"""Requests over HTTP: connections, who may come in, what may be asked, what is answered."""
