# Completion of arena-topo in PowerShell 7, on Linux and macOS.
# Nothing runs before the first TAB. Then the program on the line is asked what can stand there;
# it prints `words`, `files` or `folders`, and below that one word a line, with what it is.

Register-ArgumentCompleter -Native -CommandName 'arena-topo' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    # Only a file of this name is run: what else is called `arena` could do what the line says.
    $name = $commandAst.GetCommandName()
    if ([System.IO.Path]::GetFileName($name) -ne 'arena-topo') { $name = 'arena-topo' }
    $program = Get-Command -Name $name -CommandType Application -ErrorAction Ignore |
        Select-Object -First 1
    if (-not $program) { return }

    $word = $wordToComplete.Trim("'", '"')
    $words = @(
        foreach ($element in $commandAst.CommandElements | Select-Object -Skip 1) {
            if ($element.Extent.EndOffset -ge $cursorPosition) { break }
            if ($element -is [System.Management.Automation.Language.StringConstantExpressionAst]) {
                $element.Value
            } else {
                $element.Extent.Text
            }
        }
        $word
    )
    # An empty word gets lost on its way to a program, unless it is passed as it is since 7.3.
    $passing = Get-Variable PSNativeCommandArgumentPassing -ValueOnly -ErrorAction Ignore
    if ($PSVersionTable.PSVersion -lt [version]'7.3' -or $passing -eq 'Legacy') {
        $words = @($words | ForEach-Object { if ($_ -eq '') { '""' } else { $_ } })
    }

    $env:_ARENA_TOPO_COMPLETE = 'powershell'
    try {
        $said, $lines = @($null | & $program @words 2>$null)
    } finally {
        Remove-Item Env:_ARENA_TOPO_COMPLETE
    }

    if ("$said" -match '^(files|folders)\b') {
        $folders = $Matches[1] -eq 'folders'
        $prefix = if ($word -match '^-[^=]*=') { $Matches[0] } else { '' }
        $path = $word.Substring($prefix.Length)
        foreach ($one in [System.Management.Automation.CompletionCompleters]::CompleteFilename($path)) {
            if (-not $folders -or $one.ResultType -eq 'ProviderContainer') {
                [System.Management.Automation.CompletionResult]::new(
                    $prefix + $one.CompletionText, $one.ListItemText, $one.ResultType, $one.ToolTip)
            }
        }
        return
    }
    foreach ($line in $lines) {
        $value, $what = $line.Split("`t", 2)
        $quoted = $value
        if ($value -notmatch '^[\w./:=%+-][\w./:=%+@-]*$') {
            $quoted = "'" + $value.Replace("'", "''") + "'"
        }
        if (-not $what) { $what = $value }
        [System.Management.Automation.CompletionResult]::new($quoted, $value, 'ParameterValue', $what)
    }
    # Where there is nothing at all PowerShell offers files.
    if (-not $lines) { '' }
}
