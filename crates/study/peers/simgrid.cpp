// Pairs of actors play ping-pong over a link of their own, in SimGrid: the peer of the model's event core.
//
// Arguments: pairs, round trips of each, bytes of a message, bytes a second, latency in picoseconds. Prints the
// messages, the processor time of the run in seconds, and the modelled time at its end in seconds.

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

static void play(sg::Mailbox* out, sg::Mailbox* in, bool first, long rounds, double bytes)
{
    static int ball;
    for (long round = 0; round < rounds; round++) {
        if (first) {
            out->put(&ball, bytes);
            in->get<int>();
        } else {
            in->get<int>();
            out->put(&ball, bytes);
        }
    }
}

int main(int argc, char** argv)
{
    // Time as bandwidth and latency give it: no factors for TCP, no default bounds, whole picoseconds.
    std::vector<std::string> words{argv[0], "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0",
                                   "--cfg=network/crosstraffic:0", "--cfg=surf/precision:1e-12",
                                   "--log=root.thres:error"};
    std::vector<char*> options;
    for (auto& word : words)
        options.push_back(word.data());
    int count = static_cast<int>(options.size());
    options.push_back(nullptr);
    sg::Engine engine(&count, options.data());
    if (argc != 6)
        return 2;
    long pairs = std::atol(argv[1]), rounds = std::atol(argv[2]);
    double bytes = std::atof(argv[3]), rate = std::atof(argv[4]), latency = std::atof(argv[5]) * 1e-12;

    auto* zone = sg::create_full_zone("zone");
    for (long pair = 0; pair < pairs; pair++) {
        std::string name = std::to_string(pair);
        auto* a = zone->create_host("a" + name, 1e9);
        auto* b = zone->create_host("b" + name, 1e9);
        auto* link = zone->create_link("l" + name, rate);
        link->set_latency(latency)->seal();
        zone->add_route(a->get_netpoint(), b->get_netpoint(), nullptr, nullptr, {sg::LinkInRoute(link)}, true);
        auto* there = sg::Mailbox::by_name("there" + name);
        auto* back = sg::Mailbox::by_name("back" + name);
        sg::Actor::create("a" + name, a, play, there, back, true, rounds, bytes);
        sg::Actor::create("b" + name, b, play, back, there, false, rounds, bytes);
    }
    zone->seal();

    std::clock_t start = std::clock();
    engine.run();
    double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    std::printf("%ld %.9f %.12f\n", 2 * pairs * rounds, seconds, sg::Engine::get_clock());
    return 0;
}
