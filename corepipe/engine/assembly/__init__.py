"""Assembly: from an EngineConfig to a Deployment, and the memory and cores that it takes."""
