mount -t tmpfs none /run
ip netns add one
ip netns add two
ip link add eth0 netns one type veth peer name eth0 netns two
ip -n one address add 10.0.0.1/24 dev eth0
ip -n two address add 10.0.0.2/24 dev eth0
for machine in one two; do
    ip -n $machine link set lo up
    ip -n $machine link set eth0 up
    tc -n $machine qdisc add dev eth0 root tbf rate 500mbit burst 128kb latency 100ms
done
