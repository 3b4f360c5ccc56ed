"""What experiments came to, as tables and pictures, the paper's figures beside ours."""
