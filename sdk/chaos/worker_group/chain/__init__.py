"""What is trained: a model as a chain of layers, or as one. What of it a worker holds, updates and moves (`held`,
`layers`), its passes (`backward`), where each layer lies in the state and in the vector of a round (`layout`,
`vectors`), its local steps between two rounds, how the devices of a group share it (`sharded`, `tensor_parallel`,
`pieces`), what is refused. Sends nothing. Driven by the model or the replica that a script has in its hands.
"""
