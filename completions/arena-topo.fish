# Completion of arena-topo in fish 3.1 and later.
# Nothing runs before the first TAB. Then the program on the line is asked what can stand there;
# it prints `words`, `files` or `folders`, and below that one word a line, with what it is.

function __arena_topo_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l word (string unescape -- "$typed"; or string unescape -- "$typed\""; or string unescape -- "$typed'")

    # Only a file of this name is run: what else is called `arena` could do what the line says.
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    string match -q '*/arena-topo' -- "/$program"; or set program arena-topo
    command -q -- $program; or return
    set -e words[1]
    set words (string replace -r '^~/' "$HOME/" -- $words)

    # Where nothing begins with what is typed, fish gets to see all that can stand there: it finds
    # more than beginnings.
    set -l most (string match -r '^.*[=,:]|^--?|^' -- "$word")
    set -l lines
    for part in "$word" "$most"
        set lines (_ARENA_TOPO_COMPLETE=fish command $program $words $part 2>/dev/null </dev/null)
        test (count $lines) -gt 1; and break
        string match -q 'words*' -- $lines; or break
    end

    set -l prefix (string match -r '^-[^=]*=' -- "$typed")
    set -l path (string replace -- "$prefix" '' "$typed")
    switch "$lines[1]"
        case 'files*'
            string replace -r '^' -- "$prefix" (complete -C "'' $path")
        case 'folders*'
            string replace -r '^' -- "$prefix" (complete -C "'' $path" | string match -r '.*/$')
        case '*'
            set -e lines[1]
            printf '%s\n' $lines
    end
end

complete -c arena-topo -f -k -a '(__arena_topo_complete)'
