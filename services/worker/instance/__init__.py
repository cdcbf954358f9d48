"""What a worker holds of one model: parameters as they load, its state, and the loop that serves requests.

Live scaling, pipelines and tensor-parallel groups stand on this package; it imports none of them.
"""
