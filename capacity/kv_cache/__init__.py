"""KV cache as vLLM builds it: layers -> pages -> groups -> blocks -> what one request needs -> the log lines."""
