"""The decoupled operators in C++, built by the machine's own compiler where there is one."""
