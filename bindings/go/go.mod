module rackpool

go 1.21
