"""To be described by the engineer of this room."""
