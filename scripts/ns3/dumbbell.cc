// The dumbbell of crates/sim/examples/against_ns3.rs in ns-3 (3.37): UDP packets of a trace, over
// point-to-point links and drop-tail queues. Prints the arrival time of each packet received.
//
//   dumbbell PAIRS BITS_PER_S PROPAGATION_PS QUEUE_BYTES < trace > arrivals
//
// A line of the trace is a packet: its time in ps, sender, receiver, bytes of payload; in order of
// time. A line of the output: the packet's index in the trace, its arrival in ps.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

static const uint16_t PORT = 9;

struct Line {
    uint64_t at_ps;
    uint32_t sender;
    uint32_t receiver;
    uint32_t payload_bytes;
};

static std::vector<Line> trace;
static std::vector<Ptr<Socket>> senders;
static std::vector<Ipv4Address> addresses;

static void send(uint32_t index) {
    const Line& line = trace[index];
    std::vector<uint8_t> payload(line.payload_bytes, 0);
    for (int byte = 0; byte < 4; byte++) {
        payload[byte] = uint8_t(index >> (8 * byte));
    }
    Ptr<Packet> packet = Create<Packet>(payload.data(), line.payload_bytes);
    senders[line.sender]->SendTo(packet, 0, InetSocketAddress(addresses[line.receiver], PORT));
    if (index + 1 < trace.size()) {
        Simulator::Schedule(PicoSeconds(trace[index + 1].at_ps) - Simulator::Now(), &send, index + 1);
    }
}

static void receive(Ptr<Socket> socket) {
    Ptr<Packet> packet;
    Address from;
    while ((packet = socket->RecvFrom(from))) {
        uint8_t bytes[4];
        packet->CopyData(bytes, 4);
        uint32_t index = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t(bytes[3]) << 24;
        std::printf("%u %lld\n", index, (long long)Simulator::Now().GetPicoSeconds());
    }
}

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "dumbbell PAIRS BITS_PER_S PROPAGATION_PS QUEUE_BYTES < trace\n");
        return 2;
    }
    const uint32_t pairs = std::strtoul(argv[1], nullptr, 10);
    Line line;
    unsigned long long at;
    while (std::scanf("%llu %u %u %u", &at, &line.sender, &line.receiver, &line.payload_bytes) == 4) {
        line.at_ps = at;
        trace.push_back(line);
    }
    Time::SetResolution(Time::PS);

    // Senders, receivers, the left switch, the right one.
    NodeContainer nodes;
    nodes.Create(2 * pairs + 2);
    Ptr<Node> left = nodes.Get(2 * pairs);
    Ptr<Node> right = nodes.Get(2 * pairs + 1);
    InternetStackHelper().Install(nodes);

    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(std::strtoull(argv[2], nullptr, 10))));
    link.SetChannelAttribute("Delay", TimeValue(PicoSeconds(std::strtoll(argv[3], nullptr, 10))));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(std::string(argv[4]) + "B"));
    Ipv4AddressHelper subnets("10.0.0.0", "255.255.255.0");
    TrafficControlHelper traffic_control;
    auto connect = [&](Ptr<Node> a, Ptr<Node> b) {
        NetDeviceContainer devices = link.Install(a, b);
        Ipv4InterfaceContainer interfaces = subnets.Assign(devices);
        subnets.NewNetwork();
        // The queue of the device is the only one: no FqCoDel above it.
        traffic_control.Uninstall(devices);
        return interfaces;
    };
    for (uint32_t host = 0; host < 2 * pairs; host++) {
        Ipv4InterfaceContainer ends = connect(nodes.Get(host), host < pairs ? left : right);
        if (host >= pairs) {
            addresses.push_back(ends.GetAddress(0));
        }
    }
    connect(left, right);
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    for (uint32_t host = 0; host < 2 * pairs; host++) {
        Ptr<Socket> socket = Socket::CreateSocket(nodes.Get(host), UdpSocketFactory::GetTypeId());
        socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        if (host < pairs) {
            senders.push_back(socket);
        } else {
            socket->SetRecvCallback(MakeCallback(&receive));
        }
    }
    if (!trace.empty()) {
        Simulator::Schedule(PicoSeconds(trace[0].at_ps), &send, 0);
    }
    Simulator::Run();
    Simulator::Destroy();
    return 0;
}
