"""Kafka, seen from asyncio."""
