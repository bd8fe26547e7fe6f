"""One thread for each test process: several would only wait for each other on tensors this small.

Triton kernels run in Triton's interpreter where there is no GPU; it has to be asked before they are imported.
"""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
