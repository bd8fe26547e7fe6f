"""One thread for each test process: several would only wait for each other on tensors this small."""

import torch

torch.set_num_threads(1)
